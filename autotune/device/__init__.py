"""Which GPU is this, and what is free? NVML, CUDA, the virtual GPU and the GPU catalogue."""
