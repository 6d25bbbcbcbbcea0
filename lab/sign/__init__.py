"""The signing half of the lab: keys, roots, packing bundles and adding signatures. None of it is on a vehicle."""
