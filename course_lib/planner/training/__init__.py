"""Models, training settings, and the checks of both."""
