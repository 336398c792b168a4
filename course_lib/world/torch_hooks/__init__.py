"""Every private torch name that worlds are built on."""
