/** Keeps a mistake in one part from taking the page with it. */

import { Component, type ComponentChildren } from "preact";

interface Props {
  /** What could not be drawn, as the beginning of a sentence. */
  what: string;
  /** What it is drawn from. When that changes, drawing is tried again. */
  of?: unknown;
  children: ComponentChildren;
}

export class Boundary extends Component<Props, { error: Error | null }> {
  override state = { error: null as Error | null };

  override componentDidCatch(error: Error): void {
    console.error(error);
    this.setState({ error });
  }

  override componentDidUpdate(before: Props): void {
    if (before.of !== this.props.of && this.state.error) this.setState({ error: null });
  }

  override render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return (
      <div class="state failed" role="alert">
        <h3>{this.props.what} could not be drawn</h3>
        <p>The rest of the page still works.</p>
        <pre>{error.message}</pre>
        <button type="button" class="button" onClick={() => this.setState({ error: null })}>
          Try again
        </button>
      </div>
    );
  }
}
