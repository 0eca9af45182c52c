"""Published training runs, replayed on the null GPU: what each row says, the model, the adapter and the loop."""
