"""Work per second over sizes as a map, sizes that fall behind their neighbors, and what calls cost."""
