"""What a call costs in joules: a device's own counter over seconds of steady calls."""
