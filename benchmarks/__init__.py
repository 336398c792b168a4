"""Side-by-side measurements: `make bench` runs them all and writes RESULTS.md."""
