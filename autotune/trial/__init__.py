"""Does it fit? The worker process, the outcome of a trial, and recognising out-of-memory."""
