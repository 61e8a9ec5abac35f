"""Tables: one per fact of the outside world, such as accelerators, trackers and frames of libraries. Import nothing."""
