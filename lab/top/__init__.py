"""`fenced-lab top`: a live view of a daemon in the terminal."""
