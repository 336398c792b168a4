"""Private torch names, and the patches and kernels that use them."""
