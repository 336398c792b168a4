"""The bytes that a rank sends, and the seconds of a step on given hardware."""
