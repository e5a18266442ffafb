/** Keeps a mistake in one part from taking the page with it. */

import { Component, type ComponentChildren } from "preact";

interface Props {
  what: string;
  children: ComponentChildren;
}

export class Boundary extends Component<Props, { error: Error | null }> {
  override state = { error: null as Error | null };

  override componentDidCatch(error: Error): void {
    console.error(error);
    this.setState({ error });
  }

  override render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return (
      <div class="state" role="alert">
        <h3>{this.props.what} could not be drawn</h3>
        <p>Everything else goes on working.</p>
        <pre>{error.message}</pre>
        <button type="button" class="button" onClick={() => this.setState({ error: null })}>
          Try again
        </button>
      </div>
    );
  }
}
