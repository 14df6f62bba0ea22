"""Study of copula synthesis and VFL-GLM-VS: Tang, Feng, Li and Wang, Sections 5 and 6."""
