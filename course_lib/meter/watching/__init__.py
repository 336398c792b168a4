"""Watch what runs on a rank's thread: operators, arithmetic, modules and optimizers, `torch.compile`."""
