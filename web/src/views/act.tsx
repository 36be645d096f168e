import type { ComponentProps } from 'react';
import { Button } from '../parts/controls';
import { useLink } from '../shell/link';

const WHY = 'Daemon unreachable';

/** What a button that changes something has while the daemon is away. */
export const useHeld = (): { disabled?: true; title?: string } =>
  useLink().state === 'away' ? { disabled: true, title: WHY } : {};

/** A button that has the daemon do something. */
export const Act = (props: ComponentProps<typeof Button>) => <Button {...props} {...useHeld()} />;
