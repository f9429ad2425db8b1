"""A run over several hosts, which are network namespaces of this machine, while the network between them fails."""
