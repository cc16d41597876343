"""The museum of shipped bugs: the suite must find each of them."""
