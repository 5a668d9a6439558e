"""Record what each optimizer step had and used, so that two runs can be compared; on in rehearsals only."""
