"""The backend `simulated`: each rank is a thread of this process, with real gloo between them."""
