"""Where rows come from: arrays with weights, minibatches, streams and files beyond memory."""
