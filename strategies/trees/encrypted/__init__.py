"""Open histograms by additively homomorphic encryption: without helper, arbiter or shared seed."""
