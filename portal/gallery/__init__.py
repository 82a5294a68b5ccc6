"""A page for developers that shows each part of pages in each state, and the code to use it. It needs `DEBUG`."""
