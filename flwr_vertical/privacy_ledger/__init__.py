"""What a node has disclosed so far, over runs: kept on disk, asked before more leaves."""
