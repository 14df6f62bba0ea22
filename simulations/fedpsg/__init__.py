"""The study of FedPSG-AR: samples that a party lacks, on public tables (Liu, He, Tan et al.)."""
