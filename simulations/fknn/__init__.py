"""Study of FKNN: Du, Wang, Meng and Guo (2024), Electronics 13(2), 381, Section 4."""
