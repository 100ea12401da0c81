"""The kernels that can multiply, and the catalogue that names them."""
