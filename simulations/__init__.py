"""Studies: each reproduces the tables and figures of one paper by one command.

``python -m simulations list`` names them, ``python -m simulations fknn --help`` tells how to run
one.
"""
