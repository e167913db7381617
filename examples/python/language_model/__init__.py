"""Parts of train_language_model.py: text, model, training, plots."""
