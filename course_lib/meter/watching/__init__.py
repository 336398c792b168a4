"""Watch what runs on a rank's thread: operators, modules and optimizers, `torch.compile`."""
