/** The frame of a tensor at a step: loading and failing, its name, the steps beside it, closing. */

import type { ComponentChildren } from "preact";
import type { CrossSection } from "../api.gen";
import { useApp } from "../app/hooks";
import { setCursor } from "../app/time";
import { count, kind as kindLabel, site as siteTitle } from "../core/format";
import type { Refusal } from "../data/decode";
import { Button } from "./Controls";
import { Failed, Loading } from "./States";

interface FrameProps<T> {
  found: { data: T | null; error: Refusal | null };
  children: (data: T) => ComponentChildren;
}

export function DrawerFrame<T>({ found: { data, error }, children }: FrameProps<T>) {
  return (
    <section class="drawer" aria-label="Tensor at a step" data-drawer>
      {error && !data && (
        <>
          <div class="drawer-head">
            <span class="stretch" />
            <Close />
          </div>
          <Failed error={error} what="This tensor" />
        </>
      )}
      {!data && !error && <Loading what="the tensor" />}
      {data && children(data)}
    </section>
  );
}

interface HeadProps {
  /** The one whose recorded steps are walked. */
  section: CrossSection;
  /** Beside its name. */
  told: ComponentChildren;
  /** After its step. */
  more?: string;
  /** Menus and buttons. */
  children: ComponentChildren;
}

export function DrawerHead({ section, told, more = "", children }: HeadProps) {
  const { site, step, previous, next } = section;
  return (
    <div class="drawer-head">
      <h2 class="cut" title={site.name}>
        {siteTitle(site)}
      </h2>
      <span class="tag">{kindLabel(site.kind)}</span>
      {told}
      <span class="stretch" />
      <div class="stepper" role="group" aria-label="Recorded steps">
        <Step icon="left" label="Previous recorded step" keys="←" to={previous} />
        <span class="number" data-drawer-step>
          step {count(step)}
          {more}
        </span>
        <Step icon="right" label="Next recorded step" keys="→" to={next} />
      </div>
      {children}
      <Close />
    </div>
  );
}

interface StepProps {
  icon: "left" | "right";
  label: string;
  keys: string;
  to: number | null;
}

function Step({ icon, label, keys, to }: StepProps) {
  const app = useApp();
  return (
    <Button
      icon={icon}
      label={label}
      keys={keys}
      isQuiet
      disabled={to === null}
      onClick={() => setCursor(app, to)}
    />
  );
}

function Close() {
  const app = useApp();
  return (
    <Button
      icon="close"
      label="Close"
      keys="Esc"
      isQuiet
      onClick={() => app.set({ site: null }, true)}
    />
  );
}
