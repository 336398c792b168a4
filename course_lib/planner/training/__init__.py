"""What is trained, and how: models, settings, and the checks of both."""
