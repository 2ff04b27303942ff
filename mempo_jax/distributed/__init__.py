"""Several devices and several processes: meshes, placement of arrays, stopping."""
