"""The vehicle's image: a self-contained tree for /opt/fenced from hash-pinned wheels, its signature, and a .deb."""
