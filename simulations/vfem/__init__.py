"""Study of VFEM: Tang, Wang, Feng and Li, linear regression by vertical federated EM."""
