"""A toolbox of small functions: numbers, lists and text in, the same out, nothing kept between two calls."""
