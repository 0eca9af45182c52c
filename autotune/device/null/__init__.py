"""The null GPU: the released CUDA build of PyTorch on libraries that count bytes and launch nothing.

`card` says which card, `install` gets a CUDA build of torch where there is none, `build` makes the libraries,
`environment` is what a program runs under, `control` watches and disturbs it, `session` is the device inside.
"""
