"""Private torch names, and the patches and kernels that use them."""

from ...zero import older_torch  # noqa: F401 (gives the collectives the names that they have today)
