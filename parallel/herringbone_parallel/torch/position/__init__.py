"""The place of a training: the samples that its optimizer steps have used, and the random numbers that come next."""
