"""Several ranks: an RPC by which followers make the calls that rank 0 makes, and their process group."""
