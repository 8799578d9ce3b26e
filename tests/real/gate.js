// What holds requests up for as long as a test wants.

export class Gate {
  #passage = Promise.resolve();

  #let = () => {};

  /** From now on all wait. */
  shut() {
    this.open();
    this.#passage = new Promise((resolve) => { this.#let = resolve; });
  }

  open() { this.#let(); }

  /** Waits while it is shut. */
  passed() { return this.#passage; }
}
