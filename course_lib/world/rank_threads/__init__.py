"""What makes a thread look like a process: its own random numbers, output and environment, and a way to stop it."""
