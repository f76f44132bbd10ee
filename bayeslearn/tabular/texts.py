"""Parts of the estimators' docstrings."""

PARAMETERS = """
    Parameters:
        hidden: sizes of the hidden layers; () is a linear model. "auto": chosen with
            method="auto", by the number of rows for MILE and ensembles, else (50,).
        activation: a name from `jax.nn` ("tanh", "relu", ...) or a function.
        method: how the posterior is inferred: a name from `bl.ALGORITHMS` or an algorithm. "auto":
            MILE, an ensemble or the plain network, whichever predicts out-of-fold rows best.
        prior_scale: prior standard deviation of the weights, divided by the square root of a
            layer's inputs, or "hierarchical": inferred, one for each layer and each input, for
            samplers. "auto": "hierarchical" for MILE, chosen with method="auto" where there are
            no chains, 3 for ensembles, else {prior_scale:g}.
        num_steps, batch_size, starts, progress: see `bl.fit`. Samplers carry their own counts.
        validation_fraction: fraction of the rows held out, whose log-likelihood decides when to
            stop.
        num_samples: draws of the weights in a prediction.
        random_state: a whole number, a NumPy `RandomState`, or None for another result each time.
        network: a network in place of `hidden` and `activation`; see `bl.Model`.
        budget: about how long a fit with method="auto" may take, such as "1m", or seconds; None:
            a fixed amount of work, so that the result does not depend on the machine's speed.
        calibration: how predictions are calibrated on rows that are set aside from fitting:
            "conformal" (guaranteed coverage of intervals, or of `predict_set`, for exchangeable
            rows), {scaling} or "isotonic" (no guarantee); see `bl.Posterior.calibrate`. Regression
            with few rows: "cv+" or "jackknife+" (up to 100 rows) set none aside, and fit five
            times, or once for each row, more. "auto": "temperature" for classes, else "cv+" below
            500 different rows and "conformal" from there on.
        calibration_fraction: fraction of the rows that is set aside for it.
        categories: how text and categories of a data frame become numbers: "one-hot" or "ordinal".
        missing: None refuses missing values; "impute" takes the median, or the most frequent
            category; "indicator" also adds a column that says where they were missing.
"""
ATTRIBUTES = """
    Attributes:
        posterior_: the `bl.Posterior`; it predicts in the units of the data, as the estimator does.
        trace_: its trace.
        encoding_: how the columns of a data frame became numbers; absent where they all were.
        column_notes_: what a user should know about the columns of a data frame.
        scaling_: mean and scale of the columns of x.
        chosen_: the settings of the fit as a dict: those chosen, and those given.
        candidates_: with method="auto", settings that were tried, as a list of dicts: out-of-fold
            log-likelihood of a plain network ("map"), of an "ensemble" and of "mile", in units of
            the scaled y, and seconds.
        baseline_: with method="auto", scores on out-of-fold rows of the plain network and the
            other methods with the chosen settings, in units of y (the RMSE of several columns in
            standard deviations), and the seconds of training the plain network.
"""
