"""What may be said of several runs side by side, from their recorded values alone."""
