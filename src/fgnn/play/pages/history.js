// Undo and redo: snapshots of the model as text.

const MOST = 200;

export class Undo {
  constructor() { this.past = []; this.future = []; this.now = null; }

  /** Start over with a first state. */
  reset(text) { this.past = []; this.future = []; this.now = text; }

  /** Record the state after an edit; an edit that changes nothing is no step. */
  record(text) {
    if (text === this.now) return;
    if (this.now !== null) this.past.push(this.now);
    if (this.past.length > MOST) this.past.shift();
    this.future = [];
    this.now = text;
  }

  /** The state before the last edit; null if there is none. */
  undo() { return this.move(this.past, this.future); }

  /** The state that the last undo left; null if there is none. */
  redo() { return this.move(this.future, this.past); }

  move(from, to) {
    if (!from.length) return null;
    to.push(this.now);
    this.now = from.pop();
    return this.now;
  }

  get canUndo() { return this.past.length > 0; }

  get canRedo() { return this.future.length > 0; }
}
