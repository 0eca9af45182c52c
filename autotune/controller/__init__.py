"""The controller: joins device, ladder, trials, profile and store into `probe` and `fit and train`.

It knows a training job only as a Workload in a worker process, creates no CUDA context and imports no torch.
"""
