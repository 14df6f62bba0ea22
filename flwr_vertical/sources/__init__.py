"""Where tables come from besides single files: databases and folders of Parquet files.

A source is read once, into a `flwr_vertical.tables.Table`; a result can be written back to one.
"""
