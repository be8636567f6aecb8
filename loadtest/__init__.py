"""THE PROOF: 500 documents through the real stack, one noisy sender, and what the others notice of it.

Read in this order:

    scenario     what is sent, to whom, on which terms
    corpus       the documents: real PDFs, texts, pages (pdf writes them, breakage harms them)
    simulator    the provider: an OpenAI-compatible server (prompt, faults, answer; provider is its process)
    stage        the running stack, pointed at the simulator for the length of a run
    drive        sends the documents; probe times the API meanwhile
    run          one run from beginning to end

    records      the vocabulary of the evidence
    collect      gathers it: store from the database, trail from Kafka
    evidence     joins it: lost, done twice, rightly dead
    audit        did the caps hold
    ideal        what a perfect scheduler would have made of the same jobs
    figures      the numbers of report.json
    promises     the numbers that were promised
    report       report.json and report.html (picture draws the slots); console shows the tables

Beside it, bench measures the speed of the single parts.
"""
