"""Peers of Pelton: how to install, feed, start and measure them."""
