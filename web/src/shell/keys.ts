import { type KeyboardEvent as FieldKeyEvent, useEffect, useRef } from 'react';

export type Keys = Record<string, () => unknown>;

const layers: { current: Keys }[] = [];
let first = '';
let firstAt = 0;
const PAIR_MS = 1500;
/** The stored preference for keyboard shortcuts: people with speech input turn them off. */
const SINGLE_KEYS = 'kapelle.keys';

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement &&
  (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

/** The key that is held for a command on this machine, with the one that is pressed then. */
export const withCommand = (key: string): string =>
  /^(Mac|iP)/.test(navigator.platform) ? `⌘${key}` : `Ctrl ${key}`;

/** Submit the form of a text field on Ctrl Enter, unless its button is disabled. */
export function submitOnCommand(event: FieldKeyEvent<HTMLTextAreaElement>): void {
  if (event.key !== 'Enter' || !(event.metaKey || event.ctrlKey)) return;
  event.currentTarget.form?.querySelector<HTMLButtonElement>('[type=submit]')?.click();
}

/** The shortcuts of the current view. */
const actionOf = (key: string): (() => unknown) | undefined =>
  layers.toReversed().find(({ current }) => current[key])?.current[key];

/** Do what a key does, for the button that names it. */
export const press = (key: string): unknown => actionOf(key)?.();

function pressed(event: KeyboardEvent): void {
  const command = (event.metaKey || event.ctrlKey) && event.key.toLowerCase() === 'k';
  if (!command && (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target))) return;
  // A window over the page has its own keys: Escape closes it, if nobody prevents that.
  if (document.querySelector('dialog[open]')) return;
  if (!command && event.key.length === 1 && localStorage.getItem(SINGLE_KEYS) === 'off') return;
  const key = command ? '/' : event.key;
  const pair = performance.now() - firstAt < PAIR_MS ? `${first} ${key}` : key;
  // A pair goes before what its second key does by itself, wherever that is shown.
  const action = actionOf(pair) ?? actionOf(key);
  first = !action && key === 'g' ? key : '';
  firstAt = performance.now();
  if (!action) return;
  event.preventDefault();
  action();
}

window.addEventListener('keydown', pressed);

/** Keys that do something while this is shown; what is shown later comes first. */
export function useKeys(keys: Keys): void {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    layers.push(current);
    return () => {
      layers.splice(layers.indexOf(current), 1);
    };
  }, []);
}
