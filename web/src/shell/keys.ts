import { useEffect, useRef } from 'react';

export type Keys = Record<string, () => unknown>;

const layers: { current: Keys }[] = [];
let first = '';
let firstAt = 0;
const PAIR_MS = 1500;

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement &&
  (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

function pressed(event: KeyboardEvent): void {
  const command = (event.metaKey || event.ctrlKey) && event.key.toLowerCase() === 'k';
  if (!command && (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target))) return;
  if (document.querySelector('dialog[open]') && event.key !== 'Escape') return;
  const key = command ? '/' : event.key;
  const pair = performance.now() - firstAt < PAIR_MS ? `${first} ${key}` : key;
  for (const layer of [...layers].reverse()) {
    const action = layer.current[pair] ?? layer.current[key];
    if (action) {
      event.preventDefault();
      first = '';
      action();
      return;
    }
  }
  first = key === 'g' ? key : '';
  firstAt = performance.now();
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
